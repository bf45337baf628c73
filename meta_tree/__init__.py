"""What router and worker both know: names, block chains, cache events, both ends of the feed, the view. Pure."""
