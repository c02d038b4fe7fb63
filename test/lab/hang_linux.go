package lab

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// HangFolder makes each open of a file in a directory hang, as on a disk that does not answer,
// until release is called or the test ends. It needs root.
func HangFolder(t testing.TB, dir string) (release func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a folder hang")
	}
	group, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(group, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, dir)
	}
	if err != nil {
		t.Skip("needs a kernel that can make a folder hang: ", err)
	}
	release = sync.OnceFunc(func() { _ = unix.Close(group) }) // all waiting opens continue
	t.Cleanup(release)
	return release
}
