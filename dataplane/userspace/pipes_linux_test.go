package userspace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestIdleConnectionsHoldNoPipes receives large answers on many connections. Afterwards, the idle
// connections must have only a few open pipes, and the descriptor budget must include all of them.
func TestIdleConnectionsHoldNoPipes(t *testing.T) {
	const n, stalled = 100, 10
	s := serveAt(t, "127.0.0.1:0", named("s"))
	flood := serveAt(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.Copy(c, zeros{}) })
	d := start(t, Options{})
	f, floods := frontendAt("127.77.7.1:9000", s.addr), frontendAt("127.77.7.1:9001", flood.addr)
	d.apply(f, floods)
	var clients []*client
	for range n {
		clients = append(clients, mustConnect(t, f.AddrPort()))
	}
	for _, size := range []int{20 << 10, 256 << 10} {
		line := strings.Repeat("x", size)
		for _, c := range clients {
			echo(t, c, line)
		}
		eventually(t, fmt.Sprintf("%d idle connections after %d bytes each", n, size), func() error {
			if pipes := pipeEnds(); pipes > n/5 {
				return fmt.Errorf("pipe descriptors = %d, want at most %d", pipes, n/5)
			}
			return nil
		})
	}
	for range stalled { // these clients do not read, so data fills the sockets and pipes
		mustConnect(t, floods.AddrPort())
	}
	eventually(t, "the clients that don't read", func() error {
		pipes, counted := pipeEnds(), int(d.budget.used.Load())
		if most := 2 * pipesFor(int(d.budget.limit), memory()); pipes > most {
			t.Fatalf("pipe descriptors = %d, want at most %d", pipes, most)
		}
		if want := 2 + 2*(n+stalled) + pipes; counted != want || len(connections(t, d.Dataplane)) != n+stalled {
			return fmt.Errorf("counted descriptors = %d, want %d, including %d pipe descriptors", counted, want, pipes)
		}
		return nil
	})
	for _, c := range clients {
		c.mustAsk(t)
	}
}

func connections(t testing.TB, d *Dataplane) []dataplane.Connection {
	t.Helper()
	all, err := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestBulkWithoutPipes relays bulk data when no pipe, or only one pipe, is permitted. All bytes
// must arrive in order.
func TestBulkWithoutPipes(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	for most := range 2 {
		d := start(t, Options{})
		d.loops.pipes.max = most
		f := frontendAt(fmt.Sprintf("127.77.7.2:%d", 9000+most), s.addr)
		d.apply(f)
		echo(t, mustConnect(t, f.AddrPort()), countTo(200_000))
	}
}

// TestPipesAreBounded calculates the maximum number of pipes. The number must be limited by the
// descriptors, and by the memory that pipes use while clients do not read.
func TestPipesAreBounded(t *testing.T) {
	for _, c := range []struct {
		limit  int
		memory uint64
		want   int
	}{{1024, 16 << 30, 64}, {1 << 20, 16 << 30, 512}, {1 << 20, 512 << 20, 16}, {8, 16 << 30, 0}, {1024, 0, 0}} {
		if got := pipesFor(c.limit, c.memory); got != c.want {
			t.Errorf("pipesFor = %d with %d descriptors and %d bytes of memory, want %d", got, c.limit, c.memory, c.want)
		}
	}
	have := memory()
	if have < 16<<20 {
		t.Fatalf("memory() = %d bytes, want at least 16 MiB", have)
	}
	if p := newPipes(newBudget(1 << 30)); uint64(p.max)*pipeSize > have/32 {
		t.Errorf("maximum number of pipes = %d, want at most a 32nd of %d bytes in pipes", p.max, have)
	}
}

// TestUrgentByteInBulk sends an out-of-band byte within bulk data, where splice stops. The
// connection must continue, and must release its pipe when the data ends.
func TestUrgentByteInBulk(t *testing.T) {
	const size = 300_000
	got := make(chan int, 2)
	s := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		for range 2 {
			n, _ := io.ReadFull(c, make([]byte, size))
			got <- n
		}
	})
	d := start(t, Options{})
	f := frontendAt("127.77.7.3:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for i, urgent := range []string{"", "!"} {
		if urgent != "" {
			if cerr := raw.Control(func(fd uintptr) { err = unix.Send(int(fd), []byte(urgent), unix.MSG_OOB) }); cerr != nil || err != nil {
				t.Fatal(cerr, err)
			}
		}
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-got:
			if n != size {
				t.Fatalf("part %d of the data ended after %d bytes, want %d", i, n, size)
			}
		case <-time.After(wait.Patience):
			t.Fatalf("part %d of the data did not arrive", i)
		}
	}
	eventually(t, "the pipe to be given back", func() error {
		if n := pipeEnds(); n > 2*sparePipes {
			return fmt.Errorf("open pipe descriptors = %d, want fewer", n)
		}
		return nil
	})
}

// TestBulkLeavesTimeToOthers relays 8 MiB from one side, with and without pipes. The relay must
// stop when its quota is used up, so other connections get their turn.
func TestBulkLeavesTimeToOthers(t *testing.T) {
	d := start(t, Options{})
	l, err := newLoop(d.Dataplane, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.poller.close()
	from, err := os.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	if err := from.Truncate(8 << 20); err != nil {
		t.Fatal(err)
	}
	to, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = to.Close() }()
	for most := range 2 {
		d.loops.pipes.max = most
		l.hungry = nil
		c := &conn{transport: transport{phase: relaying, counter: &counter{}}}
		c.sides = [2]side{{fd: int(from.Fd()), readable: true, bulk: true}, {fd: int(to.Fd())}}
		l.pump(c, clientSide)
		if n := c.in.Load(); n < quota || n > quota+pipeSize || len(l.hungry) != 1 {
			t.Errorf("one turn with at most %d pipes: relayed bytes = %d, want %d to %d; sides waiting for another turn = %d, want 1", most, n, quota, quota+pipeSize, len(l.hungry))
		}
	}
	for _, p := range l.spare {
		d.loops.pipes.discard(p)
	}
}

// TestLastWordsReachSlowReaders resets a backend's connection while the client does not read. The
// client must receive all data that the backend has sent, in messages or in bulk, and then the
// reset. If the client closes its connection, the backend's side must be closed immediately.
func TestLastWordsReachSlowReaders(t *testing.T) {
	for i, size := range []int{12_000, 200_000, 100_000} {
		lost := make(chan struct{})
		s := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
			_, _ = c.Write(make([]byte, size))
			<-lost
			reset(c.(*net.TCPConn))
		})
		d := start(t, Options{})
		f := frontendAt(fmt.Sprintf("127.77.7.5:%d", 9000+i), s.addr)
		d.apply(f)
		slow := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return control(raw, func(fd uintptr) error { return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		}}
		c, err := slow.Dial("tcp", f.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		var relayed *conn
		eventually(t, "the data in the sockets", func() error {
			if all := d.connsOf(f); len(all) == 1 && all[0].out.Load() == uint64(size) {
				relayed = all[0]
				return nil
			}
			return errors.New("it is not there")
		})
		close(lost)
		eventually(t, "the loss of the backend", func() error {
			failing := make(chan bool)
			relayed.loop.send(func(*loop) { failing <- relayed.failing || relayed.phase != relaying })
			if !<-failing {
				return errors.New("the loop has not noticed it")
			}
			return nil
		})
		if size == 100_000 {
			began := time.Now()
			reset(c.(*net.TCPConn))
			eventually(t, "the end of the connection", func() error {
				if n := len(d.connsOf(f)); n > 0 {
					return fmt.Errorf("connections = %d, want 0", n)
				}
				return nil
			})
			if took := time.Since(began); took > resetDrainTime/2 {
				t.Errorf("connection closed %s after its client, want less", took)
			}
		} else if n, err := io.Copy(io.Discard, c); n != int64(size) || !isReset(err) {
			t.Errorf("received bytes = %d, then error %v; want %d, then a reset", n, err, size)
		}
	}
}

// TestUrgentByteInMessage sends a short text with an out-of-band byte in the middle. The whole text
// arrives before the loop reads it. Both halves of the text must be relayed, although a read stops
// at the byte and no more events follow.
func TestUrgentByteInMessage(t *testing.T) {
	got := make(chan string, 1)
	s := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		b := make([]byte, len("abcdef"))
		for range 2 {
			n, _ := io.ReadFull(c, b)
			got <- string(b[:n])
		}
	})
	d := start(t, Options{})
	f := frontendAt("127.77.7.4:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	arrives := func(want string) {
		t.Helper()
		select {
		case text := <-got:
			if text != want {
				t.Fatalf("text at the backend = %q, want %q", text, want)
			}
		case <-time.After(wait.Patience):
			t.Fatalf("no answer arrived, want %q", want)
		}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	send := func(text string, flags int) {
		t.Helper()
		if err := control(raw, func(fd uintptr) error { return unix.Send(int(fd), []byte(text), flags) }); err != nil {
			t.Fatal(err)
		}
	}
	send("before", 0)
	arrives("before")
	release := make(chan struct{})
	d.loops.all[0].send(func(*loop) { <-release })
	send("abc", 0)
	send("X", unix.MSG_OOB)
	send("def", 0)
	eventually(t, "the arrival at the loop", func() error {
		return control(raw, func(fd uintptr) error {
			if n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); n != 0 || err != nil {
				return fmt.Errorf("unacknowledged bytes = %d, %w", n, err)
			}
			return nil
		})
	})
	close(release)
	arrives("abcdef")
}

func echo(t testing.TB, c *client, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
	got, err := c.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if got != "s "+line+"\n" {
		t.Fatalf("answer with %d bytes differs from the line with %d bytes", len(got)-len("s \n"), len(line))
	}
}

// countTo returns a line with the numbers up to n, in which missing or reordered parts can be
// detected.
func countTo(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// pipeEnds returns the number of open descriptors of pipes with the capacity pipeSize.
func pipeEnds() (n int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil && size == pipeSize {
			n++
		}
	}
	return n
}

// TestResetInBulk resets one side of a connection after bulk data, so splice detects the reset. The
// other side must also be reset, even if it has already stopped sending. Otherwise, truncated data
// would look complete.
func TestResetInBulk(t *testing.T) {
	const size = 64 << 10
	read := make(chan struct{})
	s := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		_, _ = c.Write(make([]byte, size))
		<-read
		reset(c.(*net.TCPConn))
	})
	d := start(t, Options{})
	f := frontendAt("127.77.0.64:9000", s.addr)
	d.apply(f)
	for _, half := range []bool{false, true} {
		for range 5 {
			c := mustConnect(t, f.AddrPort())
			if half {
				_ = c.CloseWrite()
			}
			if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
				t.Error(err)
			}
			read <- struct{}{}
			if _, err := io.Copy(io.Discard, c); !isReset(err) {
				t.Fatalf("client after the backend's reset: error = %v, want a reset; client half-closed = %v", err, half)
			}
		}
	}
}

// TestResetWhileTheOtherSideIsBlocked resets a client while the backend does not read the client's
// data. The connection must be closed soon after resetDrainTime.
func TestResetWhileTheOtherSideIsBlocked(t *testing.T) {
	done := make(chan struct{})
	s := serveAt(t, "127.0.0.1:0", func(net.Conn) { <-done })
	d := start(t, Options{})
	t.Cleanup(func() { close(done) }) // must run before the goroutine check
	f := frontendAt("127.77.0.65:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	for sent := int64(1); sent > 0; { // writes until the connection accepts no more data
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		sent, _ = io.Copy(c, io.LimitReader(zeros{}, 1<<30))
	}
	reset(c.TCPConn)
	lab.Eventually(t, 2*resetDrainTime, "the end of the connection", func() error {
		if all := d.connsOf(f); len(all) > 0 {
			return fmt.Errorf("connections = %d, want 0", len(all))
		}
		return nil
	})
}
