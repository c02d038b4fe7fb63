package tomlfile

// Paths returns every path that the scanner found.
func (d *Document) Paths() map[string]bool {
	paths := map[string]bool{}
	for path := range d.all() {
		paths[path] = true
	}
	return paths
}
