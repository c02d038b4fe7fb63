package lockfile

import "time"

const (
	// patience is the maximum wait for a dying holder. The kernel closes a process's files only at
	// its very end, some time after kill -9. A process with much memory and many sockets needs 100
	// ms, or more on a busy host.
	patience = 2 * time.Second
	// attemptPause is the time between two attempts.
	attemptPause = 10 * time.Millisecond
)

// Await calls try until no other process holds the lock, and reports whether one still does. If the
// holder is dying, it waits for at most patience; otherwise it returns at once. holder returns the
// process id, or 0 if it is unknown.
func Await(try func() (held bool), holder func() (pid int)) (held bool) {
	return await(try, func() bool { return IsDying(holder()) })
}

// await implements Await; dying reports whether the holder is dying. A holder may release the lock
// between try and dying, so another try follows.
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
