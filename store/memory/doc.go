// Package memory is a source that a program fills itself: for tests, and for programs that embed the balancer.
//
//	source := memory.New()
//	source.Set(&balancer.Service{Name: "web", ...})
//	go source.Watch(ctx, publish)
//
// It keeps nothing anywhere: when the program ends, all of it is gone.
package memory
