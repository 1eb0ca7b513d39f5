"""One HTML file from a folder of results: charts as SVG, no script, nothing from the network."""
