"""How are the parameters found?"""
