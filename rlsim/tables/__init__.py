"""What was measured of devices: profiles, operator tables by family, their digests."""
