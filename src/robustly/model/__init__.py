"""What is a unit, what is local to it, and how is one row distributed?"""
