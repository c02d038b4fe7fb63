package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"vipd/test/wait"
)

// uploadSize is what goes through the VIP: long enough for hundreds of changes of the definitions.
const uploadSize = 1 << 30

// TestUploadUnderChanges sends a gigabyte through the VIP, ends its side, and reads the checksum that the server
// answers, while the definitions change every 10 ms.
func TestUploadUnderChanges(t *testing.T) {
	address, sums := sumServer(t)
	service := func(weight string) string {
		return `
[services.upload]
vips = ["127.40.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.40.1.2", port = ` + portOf(t, address) + `, weight = ` + weight + ` }]
[services.other]
vips = ["127.40.0.2"]
ports = [{ port = 80` + weight + `1 }]
`
	}
	n := startNode(t, service("1"))
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changes := 0
	changing.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			changes++
			text := header + service([]string{"1", "2", "3"}[changes%3])
			if err := os.WriteFile(n.file(), []byte(text), 0o644); err != nil {
				t.Error(err)
				return
			}
		}
	})
	sent, got := upload(t, "127.40.0.2:8080")
	close(stop)
	changing.Wait()
	if !bytes.Equal(sent, got) || !bytes.Equal(sent, <-sums) {
		t.Errorf("the server's sum is %x, the client's %x", got, sent)
	}
	if r := n.status().Sync; changes < 20 || r.Wanted < 2 { // the first is the state at the start; files that go on changing are read five times a second
		t.Errorf("only %d changes were made, %d seen", changes, r.Wanted)
	}
	wait.For(t, 5*time.Second, "the last change", func() bool { s := n.status().Sync; return s.Wanted == s.Applied && s.Pending == 0 })
}

// sumServer answers a connection, when its client has ended, with the sum of all that came.
func sumServer(t *testing.T) (address string, sums <-chan []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.40.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan []byte, 1)
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		sum := sha256.New()
		if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, c, make([]byte, 1<<20)); err != nil {
			t.Error("the server reads:", err)
		}
		out <- sum.Sum(nil)
		if _, err := c.Write(sum.Sum(nil)); err != nil {
			t.Error("the server answers:", err)
		}
	})
	return l.Addr().String(), out
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// upload sends uploadSize random bytes, ends its side and returns the sum of what it sent and what came back.
func upload(t *testing.T, vip string) (sent, got []byte) {
	t.Helper()
	c, err := net.Dial("tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	sum := sha256.New()
	block := make([]byte, 4<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(block) // never fails
	for left := uploadSize; left > 0; left -= len(block) {
		block[0]++ // every block differs
		_, _ = sum.Write(block)
		if _, err := c.Write(block); err != nil {
			t.Fatal("sending:", err)
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err = io.ReadAll(c)
	if err != nil {
		t.Fatal("reading the answer:", err)
	}
	return sum.Sum(nil), got
}
