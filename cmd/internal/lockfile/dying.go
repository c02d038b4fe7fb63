package lockfile

import "time"

const (
	// patience is how long a holder that is dying has to let go of a lock. The kernel frees what a process has only at its very end, which
	// is some time after kill -9: a process with much memory and many sockets needs 100 ms, and more on a busy host.
	patience = 2 * time.Second
	// attemptPause is the time between two attempts.
	attemptPause = 10 * time.Millisecond
)

// Await calls try until no other process holds the lock, and reports whether one still does. It waits for a holder that is dying, for
// patience at most; it returns at once if the holder lives. Holder returns its process id, 0 if that is unknown.
func Await(try func() (held bool), holder func() (pid int)) (held bool) {
	return await(try, func() bool { return IsDying(holder()) })
}

// await is Await with a dying that reports whether the holder is. A holder that lets go between a try and that question is not known any
// more, so one more try follows.
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
