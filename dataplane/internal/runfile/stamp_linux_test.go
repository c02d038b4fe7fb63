package runfile

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStamp calls Stamp in two network namespaces. The two namespaces must differ, and the two boot
// IDs must be equal.
func TestStamp(t *testing.T) {
	boot, namespace, err := Stamp()
	if err != nil || len(boot) != len("01234567-0123-0123-0123-0123456789ab") || namespace == "" {
		t.Fatalf("Stamp() = %q, %q, %v; want a boot ID and a namespace", boot, namespace, err)
	}
	if b, n, err := Stamp(); b != boot || n != namespace || err != nil {
		t.Errorf("Stamp() = %q, %q, %v; want %q, %q", b, n, err, boot, namespace)
	}
	t.Run("in another namespace", func(t *testing.T) {
		runtime.LockOSThread() // the thread joins another namespace, and exits with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Skip("needs root: ", err)
		}
		if b, n, err := Stamp(); b != boot || n == namespace || n == "" || err != nil {
			t.Errorf("Stamp() = %q, %q, %v; want boot %q and a namespace other than %q", b, n, err, boot, namespace)
		}
	})
}
