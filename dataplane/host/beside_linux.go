package host

// backgroundThreshold is the minimum number of new addresses for which Prepare adds them in the
// background, while a forwarding mode writes its rules. The kernel compares a new address with all
// of the device's addresses, so adding 10,000 addresses takes more than a second. A forwarding mode
// does not need the addresses before its frontends.
const backgroundThreshold = 256

// runRest calls rest, which completes a Prepare. If the mode forwards and there are many addresses,
// a goroutine calls rest, and owns the host until await returns.
func (h *Host) runRest(addresses int, rest func() error) error {
	if !h.mode.Load().Forward || addresses < backgroundThreshold {
		return rest()
	}
	h.busy = make(chan error, 1)
	go func() { h.busy <- rest() }()
	return nil
}

// await waits for the goroutine of runRest, and returns its error. Call it before using the host's
// state.
func (h *Host) await() error {
	if h.busy == nil {
		return nil
	}
	err := <-h.busy
	h.busy = nil
	return err
}
