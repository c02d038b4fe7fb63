package fake

import (
	"context"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// NoHost is a Host that does nothing.
type NoHost struct{}

func (NoHost) Prepare(context.Context, balancer.Desired) error                          { return nil }
func (NoHost) Finish(context.Context, snap.Map[balancer.Key, *balancer.Frontend]) error { return nil }
func (NoHost) Intact(context.Context) (string, error)                                   { return "", nil }
func (NoHost) Resync(bool)                                                              {}
func (NoHost) Problems() []balancer.Problem                                             { return nil }
func (NoHost) Repaired() []string                                                       { return nil }
func (NoHost) Alerts(context.Context, func())                                           {}
func (NoHost) Ready(dataplane.Change, bool) error                                       { return nil }
