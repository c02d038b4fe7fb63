// Package tracing makes one OpenTelemetry trace of each change, from the moment at which the source
// noticed it until it is served, and sends it by OTLP over HTTP.
//
//	change             the source noticed it .. it is served
//	  decode           .. the source published what it read
//	  compile          .. frontends are made of it
//	  engine           one round of the engine
//	    observe, prepare host, apply (one for each batch), finish host
//
// A trace begins before that at the command of vipctl which made the change: over the socket its
// W3C traceparent is a header of the request, over etcd a field of the entry that the same
// transaction adds to the service's history. A node reads that entry when the change is over, and
// only if it traces.
//
// Spans are made when a change is over, from the times that model and engine noted anyway. What
// waits to be sent is bounded, and dropped beyond that: nothing waits for the receiver.
package tracing
