# Sums a coverage profile by package. If several test runs list a block, it counts as covered if any of them covered it.
/^mode:/ { next }
{
	if (!($1 in statements)) statements[$1] = $2
	if ($3 > 0) covered[$1] = 1
}
END {
	for (block in statements) {
		package = block
		sub(/\/[^\/]*$/, "", package)
		all[package] += statements[block]; sum += statements[block]
		if (block in covered) { hit[package] += statements[block]; hits += statements[block] }
	}
	for (package in all) printf "%6.1f%%  %5d  %s\n", 100 * hit[package] / all[package], all[package], package | "sort -k3"
	close("sort -k3")
	if (sum > 0) printf "%6.1f%%  %5d  total\n", 100 * hits / sum, sum
}
