/** What a normalized rate means in requests, by the cost curves that the agent uses. */

import type { Curve, Curves } from "../agent/records";
import { rate, size } from "../shared/words";

const SIZES = [4 << 10, 64 << 10, 1 << 20];

/** The cost of a request: linear between points, flat below, and on by the last slope beyond. */
export function cost(curve: Curve, bytes: number): number {
    const next = curve.findIndex(([at]) => at > bytes);
    const [size1, cost1] = curve.at(next < 0 ? -1 : next) ?? [0, 1];
    if (next === 0) return cost1;
    const before = next < 0 ? curve.length - 2 : next - 1;
    const [size0, cost0] = curve[before] ?? [size1, cost1];
    if (size1 === size0) return cost1;
    return cost0 + ((cost1 - cost0) / (size1 - size0)) * (bytes - size0);
}

/** "4K reads 4,000 a second, 64K reads 400, 1M reads 26", and writes if they cost something else. */
export function meaning(iops: number, { read_curve, write_curve }: Curves): string {
    const reads = some(iops, read_curve, "reads");
    const same = JSON.stringify(read_curve) === JSON.stringify(write_curve);
    return same ? reads : `${reads}; ${some(iops, write_curve, "writes")}`;
}

function some(iops: number, curve: Curve, word: string): string {
    return SIZES.map((bytes, number) => {
        const exact = iops / cost(curve, bytes) + 1e-9;
        const count = rate(exact < 10 ? Math.floor(10 * exact) / 10 : Math.floor(exact));
        return `${size(bytes)} ${word} ${count}${number ? "" : " a second"}`;
    }).join(", ");
}
