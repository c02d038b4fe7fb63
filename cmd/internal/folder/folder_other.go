//go:build !unix

package folder

// Check returns nil: owners and modes say nothing here.
func Check(string) error { return nil }

// CheckFiles returns nil.
func CheckFiles(string) error { return nil }

// Make makes the folder at path with mkdir.
func Make(path string, mkdir func(path string) error) error { return mkdir(path) }
