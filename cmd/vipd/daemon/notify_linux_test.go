package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// systemd receives the notifications that the next vipd sends. The returned function waits for a
// notification, and fails the test if it does not arrive in time.
func systemd(t *testing.T) (hears func(what string, is func(text string) bool)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "30000")
	return func(what string, is func(text string) bool) {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(wait.Bound(0))); err != nil {
			t.Fatal(err)
		}
		for message := make([]byte, 4096); ; {
			size, err := conn.Read(message)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if is(string(message[:size])) {
				return
			}
		}
	}
}

// TestWaitsForItsStore starts vipd while its store is missing. vipd must request more time from
// systemd, so that systemd does not kill it.
func TestWaitsForItsStore(t *testing.T) {
	hears := systemd(t)
	n := &node{t: t, dir: t.TempDir()}
	n.write("[store]\npath = \"missing\"\n")
	n.launch()
	t.Cleanup(func() { n.stop() })
	hears("more time is asked for", func(text string) bool {
		if text == "READY=1" {
			t.Fatal("READY=1 arrived before a request for more time, want the request first")
		}
		return strings.HasPrefix(text, "EXTEND_TIMEOUT_USEC=")
	})
}

// TestStatusLineNamesFailure makes Apply fail. The status line in systemctl must name the failure
// once, even if no frontend failed.
func TestStatusLineNamesFailure(t *testing.T) {
	lab.New(t)
	hears := systemd(t)
	mode, _ := modes.Find(config.NFTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	first := strings.NewReplacer("127.40.0.1", "10.96.0.10", "127.40.1.1", "10.2.1.2").Replace(web)
	configure := func(services string) { n.configure(`mode = "userspace"`, `mode = "nftables"`, services) }
	configure(first)
	n.start()
	t.Cleanup(func() { n.stop() })
	run := filepath.Join(n.dir, "run")
	if err := os.Rename(run, run+".away"); err != nil {
		t.Fatal(err)
	}
	program.Save(t, run, "a file, in which there is no room for a ledger")
	configure(first + strings.NewReplacer("services.web", "services.more", "10.96.0.10", "10.96.0.11").Replace(first))
	hears("the line says why", func(text string) bool {
		if strings.Count(text, "writing the ledger") > 1 {
			t.Errorf("status line = %q, want a line that contains the reason once", text)
		}
		return strings.HasPrefix(text, "STATUS=") && strings.Contains(text, "writing the ledger")
	})
	if err := os.Remove(run); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(run+".away", run); err != nil {
		t.Fatal(err)
	}
	hears("the line says no more", func(text string) bool { return strings.HasPrefix(text, "STATUS=") && !strings.Contains(text, "ledger") })
}
