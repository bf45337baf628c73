"""Everything after the records: sums, the report and its forms, comparison. Knows no HTTP and no simulator."""
