// Package modeswitch owns the choice of the mode that serves. It chooses again at each reload, and
// when mode or strict_mode has changed, and switches without interrupting traffic:
//
//	trial of the next mode -> the engine applies everything in both -> the previous one is closed, and drains
//
// A next mode that can't apply anything is abandoned. Connections of the previous mode continue as
// long as drains may last (retire.go). Once the mode in use has applied the first complete state,
// the remains of unused modes are removed from the kernel (leftovers.go).
//
// Package cmd/internal/modes has the modes, and dataplane.Engine moves the traffic. Package
// modeswitch writes to the kernel only through them.
package modeswitch
