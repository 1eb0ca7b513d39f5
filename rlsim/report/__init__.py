"""Answers for people: text, pictures, timelines; reads results only."""
