// Echo is a small server for trying vipd. It answers with its name over HTTP, TCP and UDP, which
// shows the server that answered. It also counts accepted requests, which shows whether any were
// lost.
//
//	echo --name a --http 127.0.0.1:18081 --tcp 127.0.0.1:17001 --udp 127.0.0.1:17001
//
// HTTP: / answers "NAME CLIENT-ADDRESS", /slow?ms=N the same N milliseconds later, /healthz "ok",
// /count the counts. TCP: the line "NAME CLIENT-ADDRESS" at once, then whatever comes is sent back.
// UDP: each datagram is answered with "NAME " and itself.
//
// On SIGTERM and SIGINT it accepts no new requests, finishes open requests, and prints the counts.
package main
