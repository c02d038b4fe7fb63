package userspace

// aside runs functions that may block, such as logs and hooks, one after another in a goroutine, so
// loops and flows never wait for them.
type aside struct {
	queue chan func()
	done  chan struct{}
}

// asideLimit is the maximum number of queued calls. Additional calls are dropped.
const asideLimit = 4096

func (a *aside) start() {
	a.queue, a.done = make(chan func(), asideLimit), make(chan struct{})
	go func() {
		defer close(a.done)
		for call := range a.queue {
			call()
		}
	}()
}

// do queues call, and reports whether there was room for it. Before start and after stop, do runs
// it immediately.
func (a *aside) do(call func()) bool {
	if a.queue == nil {
		call()
		return true
	}
	select {
	case a.queue <- call:
		return true
	default:
		return false
	}
}

// flush waits until all queued calls have returned.
func (a *aside) flush() {
	done := make(chan struct{})
	if a.queue != nil {
		a.queue <- func() { close(done) }
		<-done
	}
}

// stop waits until all queued calls have returned, and stops the goroutine. No other goroutine may
// call do during stop.
func (a *aside) stop() {
	if a.queue != nil {
		close(a.queue)
		<-a.done
		a.queue = nil
	}
}
