"""What others are shown of the evidence: a benchmark of anybody's predictions, and the tables of the site."""
