// Package modeswitch owns which mode serves. It chooses again at every reload, and when mode or strict_mode has changed, and
// switches while traffic goes on:
//
//	trial of the next mode -> the engine carries everything out in both -> the one before is closed, and drains
//
// A next mode that can't carry anything out is left again. What a mode that is left still serves goes on for as long as
// drains may take (retire.go). What modes have left in the kernel that do not serve is removed once the one in use has carried
// out the first complete state (leftovers.go).
//
// The modes themselves are cmd/internal/modes', and the moving is dataplane.Engine's. The package writes to the kernel only by
// them.
package modeswitch
