/* S3D's restart file: mass (11 x Z x Y x X), velocity (3 x Z x Y x X), pressure and temperature (Z
 * x Y x X), all split among the ranks in X, Y and Z in the same way; the fourth dimension is not
 * split. Nisar et al., Son et al.: 50^3 on a rank, 15.26 MB. Runs are short and nothing is aligned.
 */
#include "kernel.h"

enum { BLOCK, SPECIES };

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    int dims[3], at[3];
    grid3(rank, ranks, dims, at);
    const struct {
        const char *name;
        MPI_Offset components;
    } arrays[] = {{"yspecies", value[SPECIES]}, {"u", 3}, {"temp", 0}, {"pressure", 0}};
    for (int a = 0; a < 4; a++) {
        int fourth = arrays[a].components != 0;
        MPI_Offset size[4] = {arrays[a].components};
        for (int d = 0; d < 3; d++)
            size[d + fourth] = dims[d] * value[BLOCK];
        struct piece *piece = plan_array(plan, arrays[a].name, 8, 3 + fourth, size);
        piece->count[0] = arrays[a].components;
        for (int d = 0; d < 3; d++) {
            piece->start[d + fourth] = at[d] * value[BLOCK];
            piece->count[d + fourth] = value[BLOCK];
        }
    }
}

const struct kernel s3d = {
    "s3d",
    "four arrays of doubles, two of them four-dimensional",
    {{"block", 11, 50, "points of a rank in each dimension"},
     {"species", 11, 11, "length of the fourth dimension of the mass array"}},
    COLLECTIVE,
    false,
    plan,
};
