// Package tracing creates an OpenTelemetry trace of each change, and sends it using OTLP over HTTP.
// The trace starts when the source of services notices the change, and ends when the change is in
// use.
//
//	change             the whole trace
//	  decode           the source reads the change and publishes a snapshot
//	  compile          frontends are compiled from the snapshot
//	  engine           a round of the engine applies the frontends
//	    observe, prepare host, apply (one for each batch), finish host
//
// If vipctl made the change, the trace starts with that command. A request over the socket has the
// command's W3C traceparent in a header. A change in etcd has the traceparent in the entry that the
// same transaction adds to the service's history. Nodes that trace changes read this entry after
// the change.
//
// Spans are created after a change, from times that are recorded anyway. The span queue is limited.
// If it is full, spans are dropped, so nothing waits for the receiver.
package tracing
