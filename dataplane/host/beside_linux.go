package host

// many addresses take the kernel long: on each device it compares a new one with all that are there, so that ten
// thousand take more than a second. A mode that forwards does not need them before its frontends, and writes its rules
// meanwhile.
const many = 256

// beside runs the rest of a Prepare: at once, or, where the mode forwards and there is much to do, in a goroutine that
// has the host to itself until await.
func (h *Host) beside(addresses int, rest func() error) error {
	if !h.mode.Load().Forward || addresses < many {
		return rest()
	}
	h.busy = make(chan error, 1)
	go func() { h.busy <- rest() }()
	return nil
}

// await waits for what goes on beside, and returns what came of it. Whatever touches the host's state comes after it.
func (h *Host) await() error {
	if h.busy == nil {
		return nil
	}
	err := <-h.busy
	h.busy = nil
	return err
}
