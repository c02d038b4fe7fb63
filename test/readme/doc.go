// Package readme runs the shell blocks of README.md in order, in a copy of the tree, and checks its
// TOML. It also tests docs/gateway.md's statements about examples/keepalived with the real
// keepalived.
//
// The word after "sh" in a block's opening line states what the block needs. No word means that it
// runs anywhere, and foreground that it runs until Ctrl-C, next to later blocks. root means that it
// installs; DESTDIR protects this machine. service means that it needs root and a network with
// vipd. systemd means that test/systemd runs it instead, in its own machine.
package readme
