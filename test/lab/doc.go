// Package lab builds small networks out of Linux network namespaces, for tests that want real
// packets.
//
// The test process itself lives in the namespace called host: Main, called from TestMain, starts
// the test binary again in a network, mount and process namespace of its own, with a fresh /sys and
// /proc and an empty /run. What is tested runs there in-process, with all its goroutines and under
// the race detector, and can do to the host what it likes: nothing of it is seen outside, and all
// of it is gone when the process ends, however it ends. Clients and servers live in further
// namespaces:
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestRoute(t *testing.T) {
//		l := lab.New(t)
//		client, server := l.Add("client"), l.Add("server")
//		l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24")
//		l.Link(l.Host(), server, "10.2.0.1/24", "10.2.0.2/24")
//		l.Host().Sysctl("net.ipv4.ip_forward", "1")
//		client.Default("10.1.0.1")
//		server.Default("10.2.0.1")
//		server.Echo("tcp", "s1", netip.MustParseAddrPort("10.2.0.2:80"))
//		conn, err := client.Dial(t.Context(), "tcp", "10.2.0.2:80")
//		...
//		answer, err := lab.Ask(conn) // answer.Server is "s1", answer.Client 10.1.0.2 with some port
//	}
//
// Without root the tests of such a package run where they are, and those that call Require or New
// skip, with the reason. Tests that use a Lab must not run in parallel with each other: they share
// the host namespace.
//
// The package builds no policy: what a server, router or switch does is what the kernel does with
// the addresses, routes and sysctls that the test sets.
package lab
