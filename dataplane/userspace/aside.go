package userspace

// aside calls functions that may block, such as logs and hooks, in their order, in a goroutine. So
// the loops and flows never wait for them.
type aside struct {
	queue chan func()
	done  chan struct{}
}

// asideLimit is the number of calls that may wait. Further calls are lost.
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

// do calls call soon, and reports whether it will. Before start and after stop it calls it at once.
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

// flush waits for all earlier calls.
func (a *aside) flush() {
	done := make(chan struct{})
	if a.queue != nil {
		a.queue <- func() { close(done) }
		<-done
	}
}

// stop waits for all calls, and ends the goroutine. Nothing may call do meanwhile.
func (a *aside) stop() {
	if a.queue != nil {
		close(a.queue)
		<-a.done
		a.queue = nil
	}
}
