//go:build !unix

package folder

// Check returns nil, because this system has no Unix owners and permission bits.
func Check(string) error { return nil }

// CheckFiles returns nil for the same reason as [Check].
func CheckFiles(string) error { return nil }

// Make creates the directory at path with mkdir. It checks nothing on this system.
func Make(path string, mkdir func(path string) error) error { return mkdir(path) }
