package tomlfile

import (
	"os"
	"path/filepath"
	"strings"
)

// spot is a name in a folder. The folder's path has no links in it.
type spot struct{ folder, name string }

func (s spot) path() string { return filepath.Join(s.folder, s.name) }

// maxLinks bounds the links that are followed on the way to one file, as kernels do.
const maxLinks = 40

// chain returns the spots where a change makes path lead to something else: each symbolic link on the way, the last
// part itself, and, where the way ends early, the first part that is missing. Real is what path leads to, "" if nothing
// is there.
func chain(path string) (spots []spot, real string) {
	if !filepath.IsAbs(path) {
		here, err := os.Getwd()
		if err != nil {
			return nil, "" // the working folder is gone
		}
		path = here + string(filepath.Separator) + path // not cleaned: after a link, ".." is not what it seems
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

// split returns the root of path and its parts, as they are written but for empty ones and ".".
func split(path string) (root string, parts []string) {
	volume := filepath.VolumeName(path)
	for part := range strings.SplitSeq(filepath.ToSlash(path[len(volume):]), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return volume + string(filepath.Separator), parts
}
