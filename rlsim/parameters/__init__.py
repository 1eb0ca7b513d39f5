"""Fitted parameters: the shipped sets, their terms, the posterior that moves them."""
