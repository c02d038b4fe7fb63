// Echo is a small server for trying vipd. It answers with its name over HTTP, TCP and UDP, so
// clients see which server answered. It also counts accepted requests, which shows whether any were
// lost.
//
//	echo --name a --http 127.0.0.1:18081 --tcp 127.0.0.1:17001 --udp 127.0.0.1:17001
//
// Over HTTP, / returns "NAME CLIENT-ADDRESS", /slow?ms=N returns the same after N milliseconds,
// /healthz returns "ok", and /count returns the counts. A TCP client first receives the line "NAME
// CLIENT-ADDRESS", and then the data that it sends. A UDP datagram is returned with "NAME " before
// its data.
//
// On SIGTERM and SIGINT it accepts no new requests, finishes open requests, and prints the counts.
package main
