// Package tracing creates an OpenTelemetry trace of each change, and sends it by OTLP over HTTP. A
// trace lasts from the time when the source noticed the change until the change is in use.
//
//	change             the source noticed it .. it is served
//	  decode           .. the source published what it read
//	  compile          .. frontends are made of it
//	  engine           one round of the engine
//	    observe, prepare host, apply (one for each batch), finish host
//
// If vipctl made the change, the trace starts with that command. Over the socket, the command's W3C
// traceparent is a header of the request. In etcd, it is a field of the entry that the same
// transaction adds to the service's history. A node that traces reads this entry after the change.
//
// Spans are created after a change, from times that the model and the engine record anyway. The
// queue of spans is limited, and further spans are dropped, so nothing waits for the receiver.
package tracing
