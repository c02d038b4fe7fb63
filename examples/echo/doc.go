// Echo is a small server for trying vipd out: it says its name over HTTP, TCP and UDP, so that one
// sees which server answered, and it counts what it accepted, so that one can tell whether anything
// was lost.
//
//	echo --name a --http 127.0.0.1:18081 --tcp 127.0.0.1:17001 --udp 127.0.0.1:17001
//
// HTTP: / answers "NAME CLIENT-ADDRESS", /slow?ms=N the same N milliseconds later, /healthz "ok",
// /count the counts. TCP: the line "NAME CLIENT-ADDRESS" at once, then whatever comes is sent back.
// UDP: each datagram is answered with "NAME " and itself.
//
// SIGTERM and SIGINT end it gracefully: no new requests, those it has are finished, and the counts
// are printed.
package main
