// Package packaging contains the scripts that build the .deb and .rpm packages, and their tests.
// "make package" writes the packages to build/packages.
//
//	version     prints the version of the tree: the last tag, and the commits since then
//	build       compiles, writes manual pages and completions, and runs nfpm (its version is in test/nfpm.mod)
//	nfpm.yaml   lists the contents of the packages
//	deb, rpm    contain the scripts that the package managers run
//	man         generates the manual pages
//
// Builds of the same commit are identical. The tests here check the files and the built packages.
// "make package-test" installs, upgrades, downgrades, removes and purges packages on a virtual
// machine (test/systemd).
package packaging
