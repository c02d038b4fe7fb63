package lockfile

import "time"

const (
	// patience is how long to wait for a dying holder. After kill -9, the kernel closes a process's
	// files only near the end of its exit. If the process has much memory and many sockets, this
	// takes 100 ms, or more on a busy host.
	patience = 2 * time.Second
	// attemptPause is the pause between two attempts.
	attemptPause = 10 * time.Millisecond
)

// Await calls try, which tries to acquire a lock, until it succeeds. While another process holds
// the lock and is dying, it retries for at most patience. It reports whether another process still
// holds the lock. holder returns the process ID of the holder, or 0 if it is unknown.
func Await(try func() (held bool), holder func() (pid int)) (held bool) {
	return await(try, func() bool { return IsDying(holder()) })
}

// await implements Await. dying reports whether the holder is dying. The holder may exit between
// the calls to try and dying, so await tries once more before it gives up.
func await(try, dying func() bool) (held bool) {
	end := time.Now().Add(patience)
	for again := true; try(); time.Sleep(attemptPause) {
		switch {
		case dying() && time.Now().Before(end):
			again = true
		case !again:
			return true
		default:
			again = false
		}
	}
	return false
}
