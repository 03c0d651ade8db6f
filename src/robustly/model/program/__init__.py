"""How is a NumPyro program read into a row model?"""
