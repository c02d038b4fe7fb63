package tomlfile

import (
	"io/fs"
	"syscall"
)

// identityOf returns what tells a file from its former self without reading it.
func identityOf(info fs.FileInfo) identity {
	id := identity{size: info.Size(), modified: info.ModTime().UnixNano(), mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.device, id.inode = uint64(stat.Dev), stat.Ino
		id.changed = stat.Ctim.Nano()
	}
	return id
}
