// Package readme runs the shell blocks of README.md in order, in a copy of the tree, and checks its
// TOML. With the real keepalived, it also tests the claims that docs/gateway.md makes about
// examples/keepalived.
//
// The word after "sh" in a block's opening line states what the block needs. Without a word, the
// block runs anywhere. foreground means that it runs until Ctrl-C, concurrently with later blocks.
// root means that it installs files; DESTDIR protects this machine. service means that it needs
// root and a network with vipd. systemd means that test/systemd runs it instead, in its own
// machine.
package readme
