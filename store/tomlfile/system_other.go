//go:build !linux

package tomlfile

import (
	"io/fs"
	"os"
)

// writersOf returns unknownWriters, because this system can't report writers.
func writersOf(*os.File) writers { return unknownWriters }

// identityOf returns attributes that distinguish versions of a file without reading it.
func identityOf(info fs.FileInfo) identity {
	return identity{size: info.Size(), modified: info.ModTime().UnixNano(), mode: info.Mode()}
}
