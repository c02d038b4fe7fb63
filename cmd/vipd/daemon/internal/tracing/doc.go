// Package tracing makes one OpenTelemetry trace of each change, from the moment at which the source noticed it until it is served, and
// sends it by OTLP over HTTP.
//
//	change             the source noticed it .. it is served
//	  decode           .. the source published what it read
//	  compile          .. frontends are made of it
//	  engine           one round of the engine
//	    observe, prepare host, apply (one for each batch), finish host
//
// Spans are made when a change is over, from the times that model and engine noted anyway. What waits to be sent is bounded, and
// dropped beyond that: nothing waits for the receiver.
package tracing
