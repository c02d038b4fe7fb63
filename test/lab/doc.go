// Package lab builds small networks of Linux network namespaces, for tests that need real packets.
//
// The test process itself runs in the namespace called host. TestMain calls Main, which starts the
// test binary again in its own network, mount and process namespaces, with new /sys and /proc and
// an empty /run. The code under test runs there in-process, with all its goroutines and under the
// race detector. It can change the host freely: nothing is visible outside, and everything ends
// with the process. Clients and servers live in additional namespaces:
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
// Without root the tests of such a package run without namespaces, and tests that call Require or
// New skip, with the reason. Tests that use a Lab must not run in parallel with each other: they
// share the host namespace.
//
// The package sets no policy: servers, routers and switches behave like the kernel with the
// addresses, routes and sysctls that the test sets.
package lab
