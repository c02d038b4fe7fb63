// Package modeswitch chooses the mode that serves. It chooses again at each reload, and when mode
// or strict_mode has changed. It switches modes without interrupting traffic:
//
//	trial of the next mode -> the engine applies everything in both -> the previous one is closed, and drains
//
// If the next mode can't apply anything, it is abandoned. Connections of the previous mode continue
// for at most the duration of a drain (retire.go). After the mode in use has applied the first
// complete state, what unused modes left behind is removed from the kernel (leftovers.go).
//
// Package cmd/internal/modes defines the modes, and dataplane.Engine moves the traffic. Package
// modeswitch changes the kernel only through the dataplanes of the modes.
package modeswitch
