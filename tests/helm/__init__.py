"""The chart, its rules and its image, held to their promises."""
