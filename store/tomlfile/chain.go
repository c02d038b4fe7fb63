package tomlfile

import (
	"os"
	"path/filepath"
	"strings"
)

// spot is a name in a directory. The path of the directory contains no links.
type spot struct{ folder, name string }

func (s spot) path() string { return filepath.Join(s.folder, s.name) }

// maxLinks is the maximum number of symbolic links in a path. Kernels have the same limit.
const maxLinks = 40

// chain returns the places at which a change can make path refer to another file: each symbolic
// link in path, the last part of path, and its first missing part. The result real is the target's
// path without links, or "" if the target does not exist.
func chain(path string) (spots []spot, real string) {
	if !filepath.IsAbs(path) {
		here, err := os.Getwd()
		if err != nil {
			return nil, "" // the working directory was removed
		}
		path = here + string(filepath.Separator) + path // not cleaned, because ".." after a link leads to another directory
	}
	folder, rest := split(path)
	for links := 0; len(rest) > 0; {
		at := spot{folder, rest[0]}
		rest = rest[1:]
		if at.name == ".." {
			folder = filepath.Dir(folder)
			continue
		}
		info, err := os.Lstat(at.path())
		if err != nil {
			return append(spots, at), ""
		}
		if info.Mode()&os.ModeSymlink == 0 {
			if len(rest) == 0 {
				spots = append(spots, at)
			}
			folder = at.path()
			continue
		}
		spots = append(spots, at)
		target, err := os.Readlink(at.path())
		if links++; err != nil || links > maxLinks {
			return spots, ""
		}
		if filepath.IsAbs(target) {
			folder = filepath.VolumeName(target) + string(filepath.Separator)
		}
		_, parts := split(target)
		rest = append(parts, rest...)
	}
	return spots, folder
}

// split returns the root of path and its parts. It omits empty parts and ".".
func split(path string) (root string, parts []string) {
	volume := filepath.VolumeName(path)
	for part := range strings.SplitSeq(filepath.ToSlash(path[len(volume):]), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return volume + string(filepath.Separator), parts
}
