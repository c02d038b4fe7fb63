//go:build !linux

package userspace

// dropsClients: without socket filters, clients get a reset.
const dropsClients = false

// filter does nothing here: clients are checked after the accept.
func filter(uintptr, *config) error { return nil }

func canFilter() bool { return false }
