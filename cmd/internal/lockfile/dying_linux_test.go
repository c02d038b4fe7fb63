package lockfile

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vipd/test/wait"
)

// holderVar is an environment variable. If it is set, this program does not run tests, but holds
// the lock at that path.
const holderVar = "LOCKFILE_TEST_HOLD"

// TestMain runs the tests. If holderVar is set, it acquires that lock instead and ends the first
// thread, so the process is a zombie with a lock until its standard input ends.
func TestMain(m *testing.M) {
	path := os.Getenv(holderVar)
	if path == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	if syscall.Gettid() != os.Getpid() { // start again: main must run on the first thread
		panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if _, err := Acquire(path); err != nil {
		panic(err)
	}
	go func() {
		_, _ = os.Stdout.WriteString("held\n")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}()
	for {
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
}

// TestTakeFromDying waits for a lock whose holder is a zombie with running threads. Await must
// retry until these threads end.
func TestTakeFromDying(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vipd.lock")
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holderVar+"="+path)
	end, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = end.Close(); _ = holder.Wait() }()
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	wait.For(t, wait.Bound(0), "the first thread of the holder to end", func() bool { return IsDying(holder.Process.Pid) })
	if pid := Holder(path); pid != holder.Process.Pid {
		t.Fatalf("holder = %d, want %d", pid, holder.Process.Pid)
	}
	tries := 0
	for held := true; held; { // a busy machine may need longer than patience
		held = Await(func() bool {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			held, _ := lock(f)
			return held
		}, func() int {
			if tries++; tries == 2 {
				_ = end.Close()
			}
			return Holder(path)
		})
		if held && tries < 2 {
			t.Fatal("Await gave up after one attempt, want retries while the holder is dying")
		}
	}
	f, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// TestIsDying checks running, killed and ended processes. IsDying must be false only for the
// running processes and for process 0.
func TestIsDying(t *testing.T) {
	if IsDying(os.Getpid()) || IsDying(0) {
		t.Error("this process or process 0: IsDying = true, want false")
	}
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if IsDying(c.Process.Pid) {
		t.Error("sleeping process: IsDying = true, want false")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !IsDying(c.Process.Pid) {
		t.Error("killed process: IsDying = false, want true")
	}
	_ = c.Wait()
	if !IsDying(c.Process.Pid) {
		t.Error("ended process: IsDying = false, want true")
	}
}

// TestAwait waits for holders that keep running, exit or are dying. A running holder must be
// reported after one more attempt. A holder that never finishes dying must be reported after
// patience.
func TestAwait(t *testing.T) {
	for _, c := range []struct {
		name         string
		held, dying  time.Duration // how long the holder holds the lock, and how long it is dying
		want         bool
		least, bound time.Duration
	}{
		{name: "free", want: false},
		{name: "lives", held: time.Hour, want: true, bound: attemptPause},
		{name: "is gone before the question", held: time.Nanosecond, want: false, bound: attemptPause},
		{name: "dies", held: time.Second, dying: time.Second, want: false, least: time.Second, bound: time.Second + attemptPause},
		{name: "never ends", held: time.Hour, dying: time.Hour, want: true, least: patience, bound: patience + 2*attemptPause},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			within := func(d time.Duration) func() bool { return func() bool { return time.Since(began) < d } }
			got := await(within(c.held), within(c.dying))
			if took := time.Since(began); got != c.want || took < c.least || took > c.bound {
				t.Errorf("%s: held = %t after %s, want %t after %s to %s", c.name, got, took, c.want, c.least, c.bound)
			}
		})
	}
}
