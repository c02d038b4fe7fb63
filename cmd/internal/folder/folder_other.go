//go:build !unix

package folder

// Check returns nil, because owners and modes mean nothing on this system.
func Check(string) error { return nil }

// CheckFiles returns nil.
func CheckFiles(string) error { return nil }

// Make creates the directory at path with mkdir.
func Make(path string, mkdir func(path string) error) error { return mkdir(path) }
