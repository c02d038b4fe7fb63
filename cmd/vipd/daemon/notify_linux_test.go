package daemon_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/test/wait"
)

// TestWaitsForItsStore: systemd gives a vipd that waits for its store more time, instead of ending it as one that does not start.
func TestWaitsForItsStore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = told.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "30000")
	n := &node{t: t, dir: t.TempDir()}
	n.write("[store]\npath = \"missing\"\n")
	n.launch()
	t.Cleanup(func() { n.stop() })
	if err := told.SetReadDeadline(time.Now().Add(wait.Bound(0))); err != nil {
		t.Fatal(err)
	}
	for message := make([]byte, 4096); ; {
		size, err := told.Read(message)
		if err != nil {
			t.Fatal("no more time was asked for: ", err)
		}
		switch text := string(message[:size]); {
		case strings.HasPrefix(text, "EXTEND_TIMEOUT_USEC="):
			return
		case text == "READY=1":
			t.Fatal("it is ready, and has asked for no more time")
		}
	}
}
