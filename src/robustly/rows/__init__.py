"""Where do the rows live, and how is a pass mapped over them and added up?"""
